"""Prepared TFDS sets in array_record files, as `download_and_prepare` lays them out, without TensorFlow."""

import io
import json

import numpy as np
from PIL import Image


def prepared_tfds(root, name, version, features, splits):
    """Write the set under ROOT/NAME/VERSION and return that folder.

    features: name -> TFDS feature; splits: name -> examples, dicts of the features' values, images as arrays.
    """
    import tensorflow_datasets as tfds
    from array_record.python.array_record_module import ArrayRecordWriter
    from tensorflow_datasets.core.example_serializer import ExampleSerializer

    features = tfds.features.FeaturesDict(features)
    folder = root / name / version
    folder.mkdir(parents=True)
    features.save_config(str(folder))
    serializer = ExampleSerializer(features.get_serialized_info())
    for split, examples in splits.items():
        file = folder / f"{name}-{split}.array_record-00000-of-00001"
        writer = ArrayRecordWriter(str(file), "group_size:1")
        for example in examples:
            encoded = features.encode_example(
                {
                    key: _png(value) if isinstance(value, np.ndarray) else value
                    for key, value in example.items()
                }
            )
            writer.write(serializer.serialize_example(encoded))
        writer.close()
    info = {
        "name": name,
        "version": version,
        "fileFormat": "array_record",
        "splits": [
            {
                "name": split,
                "shardLengths": [str(len(examples))],
                "numBytes": "1",
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            }
            for split, examples in splits.items()
        ],
    }
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return folder


def _png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    file.seek(0)
    return file
