"""Build the site: `python -m docs.generate [--out=build/site]`; then open `build/site/index.html`.

    pip install -r requirements.txt -r requirements-docs.txt

Pages are gathered in build/pages, where links between files of the repository become links of the site.
Zensical makes HTML of them. Then every link, anchor, picture and page is checked; a fault ends the build
with exit status 1 and a line for each. Nothing is loaded from a network, neither now nor when reading.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from docs.generate import checks, navigation, pages
from docs.generate.made import MADE

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Build, check, and return the exit status."""
    parser = argparse.ArgumentParser(description="Build the site.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="folder")
    out = parser.parse_args().out.resolve()
    folder = ROOT / "build" / "pages"
    shutil.rmtree(folder, ignore_errors=True)
    made = {path: text for make in MADE for path, text in make(ROOT).items()}
    site, faults = pages.gathered(ROOT, made)
    settings = tomllib.loads((ROOT / "zensical.toml").read_text())
    nav, outside = navigation.filled(settings["project"].pop("nav"), site.titles)
    faults += outside
    site.write(folder)
    config, built_site = folder.parent / "zensical.toml", folder.parent / "html"
    config.write_text(navigation.config_text(settings, nav, folder, built_site, ROOT))
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file"]
    built = subprocess.run(
        [*command, str(config)],
        env=os.environ | {"NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode:
        faults += (built.stdout + built.stderr.partition("Traceback")[0]).splitlines()
    else:
        shutil.rmtree(out, ignore_errors=True)
        shutil.move(built_site, out)  # Zensical writes below its configuration only
        checks.search_from_files(out)
        faults += checks.faults_of(out)
    print("\n".join(faults) if faults else f"{len(site.titles)} pages are in {out}")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
