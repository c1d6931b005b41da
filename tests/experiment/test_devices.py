"""A device repeats its own bits: whole runs, twice, with the network and the graph on it."""

import json

import pytest

import jaxfed

FEW = {"dataset__train_size": 300, "dataset__test_size": 100, "federation__num_clients": 5}


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("config", ["fedavg_xclp:smoke", "protofssl:smoke"])
def test_the_same_seed_gives_the_same_bits(config, tmp_path):
    found = []
    for name in ("a", "b"):
        jaxfed.run(config, workdir=tmp_path / name, progress=False, **FEW)
        records = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        states = {
            file.relative_to(tmp_path / name): file.read_bytes()
            for file in sorted((tmp_path / name / "states").rglob("*"))
            if file.is_file()
        }
        found.append(([{**record, "seconds": None} for record in records], states))
    assert found[0][1]
    assert found[0] == found[1]
