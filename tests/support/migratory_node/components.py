"""The node's parts: their configuration files and command lines, in the order in which they are started."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from migratory_node.binaries import PAUSE, PLUGINS
from migratory_node.places import API_PORT, DOMAIN, ETCD_PORT, GATEWAY, NODE, PODS, SERVICES, Places
from migratory_node.processes import run


def containerd(places: Places) -> list[str]:
    config = f"""\
version = 2
root = "{places.state}/containerd"
state = "/run/migratory-node"
[grpc]
  address = "{places.containerd_socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/{PAUSE}"
  # root without CAP_SYS_RESOURCE can't lower the score: every sandbox fails with "can't get final child's PID"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{PLUGINS}"
    conf_dir = "{places.state}/cni"
"""
    path = places.state / "containerd.toml"
    path.write_text(config)
    return ["containerd", "-c", str(path)]


def etcd(places: Places) -> list[str]:
    clients, peers = f"http://127.0.0.1:{ETCD_PORT}", f"http://127.0.0.1:{ETCD_PORT + 1}"
    return [
        "etcd",
        f"--data-dir={places.state}/etcd",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--unsafe-no-fsync",
    ]


def api_server(places: Places) -> list[str]:
    key, public = places.state / "sa.key", places.state / "sa.pub"
    if not key.exists():
        run(["openssl", "genrsa", "-out", str(key), "2048"])
        run(["openssl", "rsa", "-in", str(key), "-pubout", "-out", str(public)])
    return [
        "kube-apiserver",
        f"--etcd-servers=http://127.0.0.1:{ETCD_PORT}",
        f"--cert-dir={places.state}/certs",
        f"--secure-port={API_PORT}",
        f"--advertise-address={GATEWAY}",
        f"--service-cluster-ip-range={SERVICES}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={public}",
        f"--service-account-signing-key-file={key}",
        f"--token-auth-file={_token_file(places)}",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged",
        "--kubelet-preferred-address-types=InternalIP",
    ]


def kubeconfig(places: Places) -> Path:
    """For the administrator, and for the node's own parts."""
    token = _token_file(places).read_text().partition(",")[0]
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "migratory",
                "cluster": {
                    "server": f"https://{GATEWAY}:{API_PORT}",
                    "certificate-authority": f"{places.state}/certs/apiserver.crt",
                },
            }
        ],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "migratory", "context": {"cluster": "migratory", "user": "admin"}}],
        "current-context": "migratory",
    }
    path = places.kubeconfig
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=2))
    return path


def controllers(places: Places) -> list[str]:
    return [
        "kube-controller-manager",
        f"--kubeconfig={places.kubeconfig}",
        f"--service-account-private-key-file={places.state}/sa.key",
        f"--root-ca-file={places.state}/certs/apiserver.crt",
        "--use-service-account-credentials",
        "--leader-elect=false",
        # a test machine's node is never away for long, and tests that kill pods wait for less
        "--node-monitor-period=2s",
    ]


def scheduler(places: Places) -> list[str]:
    return ["kube-scheduler", f"--kubeconfig={places.kubeconfig}", "--leader-elect=false"]


def kubelet(places: Places) -> list[str]:
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        "failSwapOn": False,
        "failCgroupV1": False,
        "containerRuntimeEndpoint": f"unix://{places.containerd_socket}",
        "clusterDNS": [GATEWAY],
        "clusterDomain": DOMAIN,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "evictionHard": {"imagefs.available": "1%", "nodefs.available": "1%", "memory.available": "50Mi"},
        "imageGCHighThresholdPercent": 100,
        "syncFrequency": "10s",
        "maxPods": 100,
    }
    path = places.state / "kubelet.yaml"
    path.write_text(json.dumps(config, indent=2))
    return [
        "kubelet",
        f"--kubeconfig={places.kubeconfig}",
        f"--config={path}",
        f"--root-dir={places.state}/kubelet",
        f"--cert-dir={places.state}/kubelet/pki",
        f"--hostname-override={NODE}",
        # loopback is refused
        f"--node-ip={GATEWAY}",
    ]


def proxy(places: Places) -> list[str]:
    return [
        "kube-proxy",
        f"--kubeconfig={places.kubeconfig}",
        f"--hostname-override={NODE}",
        f"--cluster-cidr={PODS}",
        "--proxy-mode=iptables",
        "--conntrack-max-per-core=0",
    ]


def dns(places: Places) -> list[str]:
    corefile = f"""\
.:53 {{
    bind {GATEWAY}
    ready {GATEWAY}:8181
    errors
    kubernetes {DOMAIN} in-addr.arpa {{
        kubeconfig {places.kubeconfig} migratory
        pods insecure
    }}
    cache 2
}}
"""
    path = places.state / "Corefile"
    path.write_text(corefile)
    return ["coredns", "-conf", str(path)]


def _token_file(places: Places) -> Path:
    path = places.state / "tokens.csv"
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(f"{secrets.token_urlsafe(24)},admin,admin,system:masters\n")
    return path
