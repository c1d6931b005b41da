"""Benchmarks of one round, or of its local training: FedAvg, ProtoFSSL, FedCT's learners, shadow models."""
