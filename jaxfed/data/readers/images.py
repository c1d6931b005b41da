"""Image files as arrays, and sets of image files by class: folders named after classes.

    ROOT/CLASS/**/*.png                             one split
    ROOT/{train,test}/CLASS/**/*.png                two; `val` (or `valid`, ...) is the test split without
                                                    test; also as {Training,Testing}, {TRAIN,TEST}

Few-shot splits have no class in common, so none can test a classifier of the others. They are read as one set
without a test split. (Mini-ImageNet: 100 classes of 600. XCLP's authors test on a fixed folder with 100 of
each. As the paper does not list these images, `jaxfed.config.data.dealing` draws as many, stratified, once
for all repeats.)
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from absl import logging

from jaxfed.data.cache import cached_arrays, files_key
from jaxfed.data.dataset import ArrayEncoder, Dataset
from jaxfed.data.readers import TEST_NAMES, TRAIN_NAMES, guarded, without_training
from jaxfed.errors import UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

ENDINGS = (
    *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".dib", ".gif", ".ppm", ".pgm", ".pbm"),
    *(".pnm", ".tif", ".tiff", ".webp", ".jp2", ".tga"),
)
_ORIENTATION = 0x0112  # EXIF's tag; from 5 on width and height are swapped
_AT_A_TIME = 1024  # files between two waits for the threads

_FORMAT = 4  # raise it whenever the same files give other images
_HIDDEN = (".", "__")  # prefixes of folders that hold no class: .ipynb_checkpoints, __MACOSX

Examples = list[tuple[Path, str]]  # a file and its class
Fit = Callable[["Image", tuple[int, int]], "Image"]  # an image and (width, height)


class Encoded(NamedTuple):
    """An image file's content; `name` is its location in words."""

    name: str
    content: bytes

    def __str__(self) -> str:
        return self.name

    @classmethod
    def of(cls, name: str, value: Any) -> Encoded:
        """Return the image in a cell of a table: its bytes, or a mapping that has them as "bytes"."""
        content = value.get("bytes") if isinstance(value, Mapping) else value
        if not content:
            raise UsageError(f"{name}: holds no image; write the images' bytes")
        return cls(name, content)


class Shape(NamedTuple):
    """Common shape of all images of a set, in pixels; 1 channel is grey, 3 are RGB."""

    width: int
    height: int
    channels: int


def is_image(path: Path) -> bool:
    """True for a file or broken link with an image's ending; False for folders and pipes."""
    if path.suffix.lower() not in ENDINGS or path.name.startswith("."):  # "._1.png" of macOS
        return False
    return path.is_file() or (path.is_symlink() and not path.exists())


def images_in(folder: Path) -> list[Path]:
    """The folder's image files in the order of their names; none where there is no such folder."""
    return sorted(filter(is_image, folder.iterdir())) if folder.is_dir() else []


def images_below(folder: Path, hidden: tuple[str, ...]) -> list[Path]:
    """The image files below the folder, sorted, but for hidden prefixes; the number of others is logged."""
    images_found, others = list[Path](), 0
    for directory, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(hidden)]
        images = list(filter(is_image, (Path(directory, name) for name in names)))
        others += len(names) - len(images)
        images_found += images
    if others:
        logging.warning("%s: %d files are no images and are not read", folder, others)
    return sorted(images_found)


def common_shape(files: Iterable[Path | Encoded], image_size: int | None) -> Shape:
    """The common shape: grey if all images are grey; their own size if it is the same for all.

    Images of several sizes become squares of the median of their shorter sides, 224 at most, unless
    `image_size` says otherwise.
    """
    sizes, modes = [], set()
    for file in files:
        with _opened(file) as image:
            sizes.append(_upright_size(image, file))
            modes.add(image.mode)
    channels = 1 if modes <= {"1", "L"} else 3
    if image_size is not None:
        return Shape(image_size, image_size, channels)
    if len(set(sizes)) == 1:
        return Shape(*sizes[0], channels)
    side = min(int(np.median([min(size) for size in sizes])), 224)
    return Shape(side, side, channels)


def whole(image: Image, size: tuple[int, int]) -> Image:
    """The whole image resized to (width, height), bilinear; its proportions are not kept."""
    from PIL.Image import Resampling

    return image if image.size == size else image.resize(size, Resampling.BILINEAR)


def center(image: Image, size: tuple[int, int], *, share: float = 1.0) -> Image:
    """The middle of the image: `share` of its shorter side fills the shorter side of `size`.

    Resampled (bilinear) only if the size differs.
    """
    scale = max(side / share / length for side, length in zip(size, image.size, strict=True))
    image = whole(image, (round(image.width * scale), round(image.height * scale)))
    left, top = (image.width - size[0]) // 2, (image.height - size[1]) // 2
    return image.crop((left, top, left + size[0], top + size[1]))


def decode(target: Path, files: Sequence[Path | Encoded], shape: Shape, fit: Fit = whole) -> None:
    """Write the images to `target` as one `.npy`, uint8 [n, height, width, channels].

    Cost: Python's default number of threads; memory of `_AT_A_TIME` images, for any n.
    """
    width, height, channels = shape
    form = (len(files), height, width, channels)
    if not files:
        np.save(target, np.zeros(form, np.uint8))
        return
    images = np.lib.format.open_memmap(target, "w+", np.uint8, form)
    with target.open("r+b") as file:  # else a full disk would raise SIGBUS later
        os.posix_fallocate(file.fileno(), 0, target.stat().st_size)

    def put(row: int) -> None:
        images[row] = decoded_image(files[row], shape, fit)

    with ThreadPoolExecutor() as pool:  # Pillow decodes without the interpreter's lock
        for start in range(0, len(files), _AT_A_TIME):
            list(pool.map(put, range(start, min(start + _AT_A_TIME, len(files)))))
    images.flush()


def _opened(file: Path | Encoded) -> Image:
    from PIL import Image

    with guarded(file), warnings.catch_warnings():
        # PIL refuses an image of twice as many pixels by itself.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return Image.open(BytesIO(file.content) if isinstance(file, Encoded) else file)


def _upright_size(image: Image, file: Path | Encoded) -> tuple[int, int]:
    """Width and height once the image is turned as its EXIF says."""
    with guarded(file):
        is_on_its_side = image.getexif().get(_ORIENTATION, 1) >= 5
    return image.size[::-1] if is_on_its_side else image.size


def decoded_image(file: Path | Encoded, shape: Shape, fit: Fit) -> np.ndarray:
    """Decode one image, uint8 [height, width, channels]; a damaged file is a `UsageError`."""
    with _opened(file) as image:
        return fitted(image, file, shape, fit)


def fitted(image: Image, name: object, shape: Shape, fit: Fit) -> np.ndarray:
    """Turn an image by its EXIF tag, convert and fit it: uint8 [height, width, channels].

    Transparent pixels show white, whatever color is stored beneath them.
    """
    from PIL import ImageOps

    _check_mode(image, name)
    with guarded(name):
        upright = _on_white(ImageOps.exif_transpose(image))
        converted = upright.convert("L" if shape.channels == 1 else "RGB")
        result = fit(converted, (shape.width, shape.height))
        return np.asarray(result).reshape(shape.height, shape.width, shape.channels)


def _on_white(image: Image) -> Image:
    if not image.has_transparency_data:
        return image
    image = image.convert("RGBA")
    ground = image.copy()
    ground.paste((255, 255, 255, 255), (0, 0, *image.size))
    ground.alpha_composite(image)
    return ground


def _check_mode(image: Image, name: object) -> None:
    if image.mode.startswith(("I", "F")):
        raise UsageError(
            f"{name}: mode {image.mode!r} has more than 8 bits a channel; convert it to 8 bits"
        )


@dataclass(frozen=True)
class ImageEncoder:
    """Encoder of paths of image files, of their bytes, of PIL images, and of arrays as stored.

    They are decoded and resized as the reader of a folder does. Bytes may stand in a dict, as `datasets`
    writes them: {"bytes": ..., "path": ...}.

    Attributes:
        width, height: of an example, pixels.
        channels: 1 for grey, 3 for RGB.
        share: of the shorter side that a center crop keeps; 0: images are resized whole.
    """

    width: int
    height: int
    channels: int
    share: float = 0.0

    names = ()

    @property
    def accepts(self) -> str:
        """The kinds of images in words."""
        files = "a path, a PIL image or the bytes of an image file, a list of them"
        return f"{files}, or {self._arrays.accepts}"

    def __call__(self, rows: Any) -> np.ndarray:
        """Return uint8 [n, height, width, channels]."""
        if isinstance(rows, np.ndarray):
            return self._arrays(rows)
        is_one = isinstance(rows, str | bytes | Mapping | os.PathLike) or hasattr(rows, "convert")
        if not is_one and not isinstance(rows, Iterable):
            raise UsageError(f"rows are a {type(rows).__name__}; give {self.accepts}")
        images = [self._decoded(each) for each in ([rows] if is_one else rows)]
        return np.stack(images) if images else self.blank()

    def blank(self) -> np.ndarray:
        """Return no images, uint8 [0, height, width, channels]."""
        return self._arrays.blank()

    @property
    def _arrays(self) -> ArrayEncoder:
        return ArrayEncoder((self.height, self.width, self.channels), is_bytes=True)

    def _decoded(self, image: Any) -> np.ndarray:
        shape = Shape(self.width, self.height, self.channels)
        fit: Fit = partial(center, share=self.share) if self.share else whole
        if isinstance(image, bytes | Mapping):
            return decoded_image(Encoded.of("an image of bytes", image), shape, fit)
        if isinstance(image, str | os.PathLike):
            return decoded_image(Path(image).expanduser(), shape, fit)
        if hasattr(image, "convert"):
            return fitted(image, "a PIL image", shape, fit)
        return self._arrays(image)[0]


def read(folder: Path, image_size: int | None = None) -> Dataset:
    """Read a folder of images; decoded once, in parallel, and cached as arrays.

    A class's images lie in its folder or in folders in it; hidden folders are not classes. The number
    of skipped files is logged. Images are rotated by their EXIF tag, and resized whole (bilinear) to a square
    of `image_size`; without it `common_shape` decides. uint8 [n, h, w, 3], or [n, h, w, 1] where all images
    are grey; classes in sorted order.
    """
    train, test = _splits(folder)
    names = sorted({name for _, name in chain(train, test)})
    if not names:
        raise UsageError(
            f"{folder}: no images; use folders named after classes, with files *{', *'.join(ENDINGS[:3])}; "
            f"tables are read by a pattern, '{folder}/*.csv'"
        )
    files = (path for path in sorted(folder.iterdir()) if path.is_file())
    if beside := [file.name for file in files if not file.name.startswith(".")]:
        text = "%s: %d files beside the folders of classes are not read: %s"
        logging.warning(text, folder, len(beside), ", ".join(beside[:5]))
    return decoded(folder, train, test, names, image_size)


def decoded(
    folder: Path,
    train: Examples,
    test: Examples,
    class_names: Sequence[str],
    image_size: int | None,
    *,
    channels: int | None = None,
    share: float = 0.0,
    **more: Any,
) -> Dataset:
    """The images of both splits, decoded once, in parallel, and cached as arrays.

    `channels` makes all of them grey (1) or RGB (3). A center crop keeps `share` of the shorter side; with 0
    images are resized whole. `more` are further fields of the data set.
    """
    number = {name: c for c, name in enumerate(class_names)}
    files = [file for file, _ in chain(train, test)]
    fit: Fit = partial(center, share=share) if share else whole

    def make(target: Path) -> None:
        if image_size is None or channels is None:
            shape = common_shape(files, image_size)
        else:
            shape = Shape(image_size, image_size, channels)
        for split, examples in (("train", train), ("test", test)):
            rows = [file for file, _ in examples]
            decode(target / f"x-{split}.npy", rows, shape, fit)
            labels = np.array([number[name] for _, name in examples], np.int32)
            np.save(target / f"y-{split}.npy", labels)

    settings = str(folder.resolve()), train, test, image_size, channels, share
    key = files_key(files, _FORMAT, *settings)
    arrays = cached_arrays(f"images-{folder.name}", key, make)
    _, height, width, depth = arrays["x-train"].shape
    return Dataset(
        name=str(folder),
        x=arrays["x-train"],
        y=arrays["y-train"],
        x_test=arrays["x-test"],
        y_test=arrays["y-test"],
        num_classes=len(class_names),
        class_names=tuple(class_names),
        encoder=ImageEncoder(width, height, depth, share),
        **more,
    )


def _splits(folder: Path) -> tuple[Examples, Examples]:
    """The examples for training, and those for testing if there are any."""
    folders = {path.name.lower(): path for path in sorted(folder.iterdir()) if path.is_dir()}
    train = next((name for name in TRAIN_NAMES if name in folders), "")
    # A class may be named "test", and Train or Training without a test folder, too.
    is_split = train and (
        folders[train].name == "train" or not folders.keys().isdisjoint(TEST_NAMES)
    )
    if not is_split:
        for tested in (folders[name] for name in TEST_NAMES if name in folders):
            if any(name.lower() in folders for _, name in classes_in(tested)):
                raise without_training(tested)
        return classes_in(folder), []
    examples = classes_in(folders[train])
    by_name = {name: classes_in(folders[name]) for name in TEST_NAMES if name in folders}
    others = [*chain(*by_name.values())]
    if by_name and {name for _, name in examples}.isdisjoint(name for _, name in others):
        return sorted(examples + others, key=lambda example: example[::-1]), []
    test, *unread = [*by_name, ""]  # without test names, `val` is the test split
    if unread := [folders[name].name for name in unread if name]:
        logging.warning("%s: not read: %s", folder, ", ".join(unread))
    return examples, by_name.get(test, [])


def classes_in(folder: Path) -> Examples:
    """The images below a folder, with their classes: the names of its subfolders."""
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith(_HIDDEN))
    by_folder = {path: images_below(path, _HIDDEN) for path in inside if path.is_dir()}
    return [(file, path.name) for path, files in by_folder.items() for file in files]
