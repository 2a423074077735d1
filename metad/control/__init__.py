"""What a cluster does about itself: forms, takes nodes in and lets them go, spreads groups, leaders and slots."""
