"""`python -m rlctl` is the same as the `rlctl` command."""

import sys

from rlctl.cli import main

sys.exit(main())
