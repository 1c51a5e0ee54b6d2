"""``python -m trainctl``."""

import sys

from trainctl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
