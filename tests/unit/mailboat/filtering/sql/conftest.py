"""Makes the golden tables of SQL92 importable."""

import sys
from pathlib import Path

# Test folders are no packages, so the module beside the tables is found by path.
sys.path.insert(0, str(Path(__file__).parents[4] / "golden" / "sql92"))
