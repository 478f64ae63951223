"""Makes the model of a cluster and the sample resources importable."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "resources")]
