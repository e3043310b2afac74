"""The node's components: their configuration files and command lines, in the order in which they are started."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from migratory_node.binaries import PAUSE, PLUGINS
from migratory_node.paths import API_PORT, DOMAIN, ETCD_PORT, GATEWAY, NODE, PODS, SERVICES, NodePaths
from migratory_node.processes import run


def containerd(paths: NodePaths) -> list[str]:
    config = f"""\
version = 2
root = "{paths.state}/containerd"
state = "/run/migratory-node"
[grpc]
  address = "{paths.containerd_socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/{PAUSE}"
  # root without CAP_SYS_RESOURCE can't lower the score, and every sandbox fails with "can't get final child's PID"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{PLUGINS}"
    conf_dir = "{paths.state}/cni"
"""
    path = paths.state / "containerd.toml"
    path.write_text(config)
    return ["containerd", "-c", str(path)]


def etcd(paths: NodePaths) -> list[str]:
    clients, peers = f"http://127.0.0.1:{ETCD_PORT}", f"http://127.0.0.1:{ETCD_PORT + 1}"
    return [
        "etcd",
        f"--data-dir={paths.state}/etcd",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--unsafe-no-fsync",
    ]


def api_server(paths: NodePaths) -> list[str]:
    key, public = paths.state / "sa.key", paths.state / "sa.pub"
    if not key.exists():
        run(["openssl", "genrsa", "-out", str(key), "2048"])
        run(["openssl", "rsa", "-in", str(key), "-pubout", "-out", str(public)])
    return [
        "kube-apiserver",
        f"--etcd-servers=http://127.0.0.1:{ETCD_PORT}",
        f"--cert-dir={paths.state}/certs",
        f"--secure-port={API_PORT}",
        f"--advertise-address={GATEWAY}",
        f"--service-cluster-ip-range={SERVICES}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={public}",
        f"--service-account-signing-key-file={key}",
        f"--token-auth-file={_token_file(paths)}",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged",
        "--kubelet-preferred-address-types=InternalIP",
    ]


def kubeconfig(paths: NodePaths) -> Path:
    """Write the kubeconfig that the administrator and the node's own components use, and return its path."""
    token = _token_file(paths).read_text().partition(",")[0]
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "migratory",
                "cluster": {
                    "server": f"https://{GATEWAY}:{API_PORT}",
                    "certificate-authority": f"{paths.state}/certs/apiserver.crt",
                },
            }
        ],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "migratory", "context": {"cluster": "migratory", "user": "admin"}}],
        "current-context": "migratory",
    }
    path = paths.kubeconfig
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=2))
    return path


def controllers(paths: NodePaths) -> list[str]:
    return [
        "kube-controller-manager",
        f"--kubeconfig={paths.kubeconfig}",
        f"--service-account-private-key-file={paths.state}/sa.key",
        f"--root-ca-file={paths.state}/certs/apiserver.crt",
        "--use-service-account-credentials",
        "--leader-elect=false",
        # a test node is never away for long, and tests that kill pods expect a quick reaction
        "--node-monitor-period=2s",
    ]


def scheduler(paths: NodePaths) -> list[str]:
    return ["kube-scheduler", f"--kubeconfig={paths.kubeconfig}", "--leader-elect=false"]


def kubelet(paths: NodePaths) -> list[str]:
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        "failSwapOn": False,
        "failCgroupV1": False,
        "containerRuntimeEndpoint": f"unix://{paths.containerd_socket}",
        "clusterDNS": [GATEWAY],
        "clusterDomain": DOMAIN,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "evictionHard": {"imagefs.available": "1%", "nodefs.available": "1%", "memory.available": "50Mi"},
        "imageGCHighThresholdPercent": 100,
        "syncFrequency": "10s",
        "maxPods": 100,
    }
    path = paths.state / "kubelet.yaml"
    path.write_text(json.dumps(config, indent=2))
    return [
        "kubelet",
        f"--kubeconfig={paths.kubeconfig}",
        f"--config={path}",
        f"--root-dir={paths.state}/kubelet",
        f"--cert-dir={paths.state}/kubelet/pki",
        f"--hostname-override={NODE}",
        # the kubelet rejects loopback addresses
        f"--node-ip={GATEWAY}",
    ]


def proxy(paths: NodePaths) -> list[str]:
    return [
        "kube-proxy",
        f"--kubeconfig={paths.kubeconfig}",
        f"--hostname-override={NODE}",
        f"--cluster-cidr={PODS}",
        "--proxy-mode=iptables",
        "--conntrack-max-per-core=0",
    ]


def dns(paths: NodePaths) -> list[str]:
    corefile = f"""\
.:53 {{
    bind {GATEWAY}
    ready {GATEWAY}:8181
    errors
    kubernetes {DOMAIN} in-addr.arpa {{
        kubeconfig {paths.kubeconfig} migratory
        pods insecure
    }}
    cache 2
}}
"""
    path = paths.state / "Corefile"
    path.write_text(corefile)
    return ["coredns", "-conf", str(path)]


def _token_file(paths: NodePaths) -> Path:
    path = paths.state / "tokens.csv"
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(f"{secrets.token_urlsafe(24)},admin,admin,system:masters\n")
    return path
