"""What the pages share. With app.py and pages/ the only code that imports streamlit; nothing here imports torch."""
