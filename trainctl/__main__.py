"""``python -m trainctl``."""

from trainctl.cli.main import main

if __name__ == "__main__":
    main()
