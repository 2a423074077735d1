"""Storm simulation and stream readers on PySpark. See spark/README.md for what is here."""
