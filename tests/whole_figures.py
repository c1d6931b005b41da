"""All plots of a run, and that a plot holds all that it draws."""

import io

import numpy as np
from PIL import Image

from jaxfed.reports.figures import run_plots


def run_figures(run):
    return {name: draw() for name, draw in run_plots(run).items()}


def pixels(figure):
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return np.asarray(Image.open(stream).convert("RGB")).astype(int)


def assert_nothing_is_cut(figure):
    image = pixels(figure)
    assert max(image.shape) < 2200
    border = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
    assert np.ptp(border, axis=0).max() == 0, "something touches the edge"
