"""How what is over is taken away: by time, and with its tenant."""
