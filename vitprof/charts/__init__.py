"""Charts: arrays in, Plotly figures out. A colour means the same in every chart."""
