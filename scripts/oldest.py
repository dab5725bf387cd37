"""Prints pip constraints that pin every dependency of a pyproject.toml to the oldest version it allows."""

import re
import sys
from pathlib import Path

REQUIREMENT = re.compile(r'"([A-Za-z0-9-]+)>=([0-9.]+)[^"]*"')

for name, version in REQUIREMENT.findall(Path(sys.argv[1]).read_text("utf-8")):
    if name != "scikit-build-core":  # a build tool, not a dependency
        print(f"{name}=={version}")
