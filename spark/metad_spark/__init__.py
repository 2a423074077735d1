"""Storm simulation and stream readers on PySpark. spark/README.md describes the contents."""
