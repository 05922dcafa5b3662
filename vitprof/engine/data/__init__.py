"""The data sets' own samples: made or downloaded, checked, and read (`datasets`)."""
