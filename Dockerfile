# The dashboard and the command line in a container: docs/container.md says how to build it and how to run it.
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim
# What is installed beside the dashboard: images, dali or all; see docs/installing.md.
ARG EXTRA=images
# https://download.pytorch.org/whl/cpu: a PyTorch without CUDA, which is a tenth of the size.
ARG PIP_EXTRA_INDEX_URL=
# psycopg: the store can be a PostgreSQL server's, as compose.yaml has it.
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir "$(echo /wheels/vitprof-*.whl)[${EXTRA}]" "psycopg[binary]>=3.2"
RUN useradd --uid 1000 --create-home vitprof && install -d -o vitprof -g vitprof /store
USER vitprof
WORKDIR /home/vitprof
# Reached through a port that the engine publishes, so it listens on all of the container's addresses; browsers may use
# it as localhost or 127.0.0.1 only, see .streamlit/config.toml. It cannot tell to whom the engine publishes the port, so
# it asks for a token: one that is made at each start and printed, unless --env gives another.
ENV VITPROF_HOME=/store VITPROF_TOKEN=auto STREAMLIT_SERVER_ADDRESS=0.0.0.0 PYTHONUNBUFFERED=1
VOLUME /store
EXPOSE 8501
HEALTHCHECK --start-period=60s --interval=30s --timeout=10s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8501/_stcore/health', timeout=5)"]
ENTRYPOINT ["vitprof"]
CMD ["--no-browser", "--port", "8501"]
