"""The program for spark-submit: ``spark-submit spark/submit.py simulate ...`` is ``metad-spark simulate ...`` there."""

import sys

from metad_spark.cli import main

sys.exit(main())
