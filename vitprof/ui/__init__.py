"""Code that the pages share. Only it, app.py and pages/ import streamlit; nothing here imports torch."""
