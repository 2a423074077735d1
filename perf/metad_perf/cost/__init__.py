"""``metad-perf cost``: what each verb costs, by batch, stage and role, and by what it cost before."""
