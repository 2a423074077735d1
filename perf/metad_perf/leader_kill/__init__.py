"""``metad-perf leader-kill``: leaders die by kill -9 under a paced load: how soon do others lead, who feels it?"""
