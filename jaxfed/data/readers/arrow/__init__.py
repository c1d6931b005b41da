"""Parquet files and Arrow streams, as people and Hugging Face's `datasets` write them."""
