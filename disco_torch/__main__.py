"""`python -m disco_torch` is `disco-torch`."""

import sys

from disco_torch.cli import main

sys.exit(main())
