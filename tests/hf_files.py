"""Files as Hugging Face's `datasets` writes them, made by pyarrow alone."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def described(table, features):
    """The table with its description in the schema, as `datasets` 2 to 5 write it."""
    info = json.dumps({"info": {"features": features}})
    return table.replace_schema_metadata({"huggingface": info})


def class_label(*names):
    return {"names": list(names), "_type": "ClassLabel"}


def png(value, size=(4, 4), mode="L"):
    """Bytes of an image of one value."""
    channels = () if mode == "L" else (3,)
    stream = io.BytesIO()
    Image.fromarray(np.full((*size, *channels), value, np.uint8)).save(stream, "png")
    return stream.getvalue()


def image_table(values, labels, **options):
    """A table of images and ClassLabel labels (cat, dog)."""
    images = [{"bytes": png(value, **options), "path": f"{value}.png"} for value in values]
    columns = {
        "image": pa.array(images, pa.struct({"bytes": pa.binary(), "path": pa.string()})),
        "label": pa.array(labels, pa.int64()),
    }
    features = {"image": {"_type": "Image"}, "label": class_label("cat", "dog")}
    return described(pa.table(columns), features)


def write_parquet(file, table, **options):
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), file, **options)
    return file
