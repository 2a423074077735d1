"""A fixed grid of runs, from which ``metad-spark calibrate`` fits costs and ``metad-spark validate`` judges them."""
