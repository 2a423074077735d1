"""``metad-perf watch`` and ``metad-perf image``: is every change delivered, once, in order, and how soon?"""
