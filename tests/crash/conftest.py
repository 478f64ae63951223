"""Test folders are no packages, so the helper modules beside this file are found by path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
