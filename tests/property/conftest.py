"""Makes the broker with the compiled core importable."""

import sys
from pathlib import Path

# Test folders are no packages, so the helper module beside this file is found by path.
sys.path.insert(0, str(Path(__file__).parent))
