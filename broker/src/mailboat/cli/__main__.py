"""`python -m mailboat.cli`: the same as the `mailboat` command."""

import sys

from mailboat.cli import main

sys.exit(main())
