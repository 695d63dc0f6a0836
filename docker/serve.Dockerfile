# The search server: a slim image without a compiler and without CUDA. Build in the root of the repository:
#   docker build --file docker/serve.Dockerfile --tag tuplet-serve .
# Run with a read-only file system; the index is mounted:
#   docker run --read-only --tmpfs /tmp --cap-drop ALL --publish 8000:8000 --env TUPLET_TOKEN=secret \
#     --volume "$PWD/birds.index:/index:ro" tuplet-serve
FROM python:3.13-slim AS build
WORKDIR /source
COPY . .
RUN python -m venv /venv \
 && /venv/bin/pip install --no-cache-dir --constraint constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu \
    '.[serve,search]'

FROM python:3.13-slim
COPY --from=build /venv /venv
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin tuplet
USER 10001
ENV PATH=/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD ["python", "-c", "\
import os; from urllib.request import Request, urlopen; \
token = {'Authorization': 'Bearer ' + os.environ.get('TUPLET_TOKEN', '')}; \
urlopen(Request('http://127.0.0.1:8000/health', headers=token), timeout=4)"]
ENTRYPOINT ["tuplet", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["/index"]
