"""``python -m metad_client.cli`` runs ``metadctl``."""

import sys

from . import main

sys.exit(main())
