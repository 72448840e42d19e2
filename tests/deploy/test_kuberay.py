"""deploy/kuberay is what Kubernetes and KubeRay accept, and names what the service and Ray have."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from service.settings import SECRETS_DIR, Settings

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERAY = DEPLOY / "kuberay"
#: What a user writes into an overlay of their own in the place of the example's image.
IMAGE = {"name": "wiretune", "newName": "registry.of.ours/tuning", "newTag": "7.1"}
#: The extra that each kind of URL needs.
EXTRAS: dict[str, set[str]] = {"file": set(), "s3": {"s3"}, "postgresql": {"postgres"}}
#: A folder with KubeRay's `ray.io_rayclusters.yaml`, from its Helm chart or its repository.
CRDS = "WIRETUNE_KUBERAY_CRDS"


def documents(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text) if each]


BASE = [
    document
    for path in sorted((KUBERAY / "base").glob("*.yaml"))
    if path.name != "kustomization.yaml"
    for document in documents(path.read_text())
]


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The example overlay with another image, and secrets that `deploy/secrets.sh` made, as kustomize builds it."""
    return kustomized(tmp_path_factory.mktemp("kuberay"), images=[IMAGE])


def kustomized(folder: Path, **changes: Any) -> list[dict[str, Any]]:
    """Return what kustomize builds of the example overlay, a copy of which in `folder` has `changes`."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs `kubectl` on the PATH, which has kustomize")
    copy = shutil.copytree(KUBERAY, folder / "kuberay")
    place = copy / "overlays" / "example"
    chosen = yaml.safe_load((place / "kustomization.yaml").read_text()) | changes
    (place / "kustomization.yaml").write_text(yaml.safe_dump(chosen))
    subprocess.run(["sh", str(DEPLOY / "secrets.sh")], cwd=place, check=True)
    built = subprocess.run(["kubectl", "kustomize", str(place)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return documents(built.stdout)


def kind(found: list[dict[str, Any]], name: str) -> dict[str, Any]:
    [one] = [each for each in found if each["kind"] == name]
    return one


def refuse_unknown(schema: Any) -> Any:
    """Return a CRD's schema as strict as the API server is asked to be: an unknown field is a fault."""
    if isinstance(schema, list):
        return [refuse_unknown(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: refuse_unknown(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        strict["additionalProperties"] = False
    return strict


@pytest.mark.parametrize(
    "document",
    [each for each in BASE if each["kind"] != "RayCluster"],
    ids=lambda each: f"{each['kind']}-{each['metadata']['name']}",
)
def test_kubernetes_takes_each_object_of_the_base(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, "1.32", strict=True)


def test_kubernetes_takes_each_object_of_the_overlay(overlay: list[dict[str, Any]]) -> None:
    for document in overlay:
        if document["kind"] != "RayCluster":
            kubernetes_validate.validate(document, "1.32", strict=True)


def test_kubernetes_takes_the_pods_of_the_ray_cluster(overlay: list[dict[str, Any]]) -> None:
    for cluster in (kind(BASE, "RayCluster"), kind(overlay, "RayCluster")):
        for group in (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]):
            template = group["template"]
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"} | template["metadata"]}
            kubernetes_validate.validate(pod | {"spec": template["spec"]}, "1.32", strict=True)


@pytest.mark.skipif(CRDS not in os.environ, reason=f"needs KubeRay's CRDs in the folder that {CRDS} names")
def test_kuberay_takes_the_ray_cluster(overlay: list[dict[str, Any]]) -> None:
    crd = yaml.safe_load((Path(os.environ[CRDS]) / "ray.io_rayclusters.yaml").read_text())
    [found] = [each for each in crd["spec"]["versions"] if each["name"] == "v1"]
    schema = refuse_unknown(found["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}

    for cluster in (kind(BASE, "RayCluster"), kind(overlay, "RayCluster")):
        jsonschema.validate(cluster, schema)


def test_the_disk_that_a_pod_of_ray_takes_is_bounded(overlay: list[dict[str, Any]]) -> None:
    for cluster in (kind(BASE, "RayCluster"), kind(overlay, "RayCluster")):
        groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
        for container in (group["template"]["spec"]["containers"][0] for group in groups):
            assert "ephemeral-storage" in container["resources"]["limits"]
            assert {"RAY_ROTATION_MAX_BYTES", "RAY_ROTATION_BACKUP_COUNT"} <= {
                each["name"] for each in container["env"]
            }


def test_a_new_image_replaces_the_pods_of_ray() -> None:
    cluster = kind(BASE, "RayCluster")

    assert cluster["spec"]["upgradeStrategy"] == {"type": "Recreate"}  # by default KubeRay leaves them as they are


def test_no_api_of_the_old_release_is_left_when_the_new_one_migrates() -> None:
    api = kind(BASE, "Deployment")

    assert api["spec"]["strategy"] == {"type": "Recreate"}  # by default old pods go on until the new ones are ready


def test_with_the_patch_for_autoscaling_the_head_has_the_token_that_the_autoscaler_needs_and_no_worker_has(
    tmp_path: Path,
) -> None:
    ray = kind(kustomized(tmp_path, patches=[{"path": "autoscaling.yaml"}]), "RayCluster")["spec"]
    head, *workers = (
        group["template"]["spec"]["automountServiceAccountToken"]
        for group in (ray["headGroupSpec"], *ray["workerGroupSpecs"])
    )

    assert ray["enableInTreeAutoscaling"] and head and not any(workers)


def test_the_overlay_puts_its_image_into_every_container_of_ours(overlay: list[dict[str, Any]]) -> None:
    images: list[str] = []
    json.loads(json.dumps(overlay), object_hook=lambda each: images.append(each["image"]) if "image" in each else each)

    assert set(images) == {"registry.of.ours/tuning:7.1", "redis:7.4"}


def test_the_image_has_the_extras_that_the_urls_of_the_documentation_need() -> None:
    [installed] = re.findall(r"'\.\[(.+)\]'", (DEPLOY / "Dockerfile").read_text())
    text = "".join(path.read_text() for path in (DEPLOY.parent / "docs").glob("*.md"))
    schemes = set(re.findall(r"WIRETUNE_(?:STORAGE|DATABASE)_URL=(\w+)://", text))

    assert schemes == EXTRAS.keys()
    assert {extra for each in schemes for extra in EXTRAS[each]} <= set(installed.split(","))


def test_the_image_has_what_triton_compiles_with_and_the_programs_of_the_postgresql_of_compose() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    installed = " ".join(re.findall(r"--no-install-recommends (.+?) \\\n", text)).replace('"', "").split()
    server = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text())["services"]["postgres"]["image"]

    assert {"gcc", "libc6-dev", "postgresql-client-${POSTGRES}"} <= set(installed)
    assert re.findall(r"ARG POSTGRES=(\d+)", text) == [server.removeprefix("postgres:")]


def test_every_secret_and_claim_that_a_pod_mounts_is_there(overlay: list[dict[str, Any]]) -> None:
    made = {each["metadata"]["name"]: each.get("data", {}) for each in overlay if each["kind"] == "Secret"}
    claims = {each["metadata"]["name"] for each in overlay if each["kind"] == "PersistentVolumeClaim"}
    ray = kind(overlay, "RayCluster")["spec"]
    password = ray["gcsFaultToleranceOptions"]["redisPassword"]["valueFrom"]["secretKeyRef"]
    asked: list[dict[str, Any]] = []
    json.loads(json.dumps(overlay), object_hook=lambda each: asked.append(each) or each)

    assert {each["secretName"] for each in asked if "secretName" in each} <= made.keys()
    assert {each["claimName"] for each in asked if "claimName" in each} <= claims
    assert set(made[ray["authOptions"]["secretName"]]) == {"auth_token"}
    assert password["key"] in made[password["name"]]
    assert set(made["wiretune"]) == {"wiretune_database_url", "wiretune_secret", "wiretune_api_key"}


def test_the_api_sets_only_variables_that_the_service_reads() -> None:
    pod = kind(BASE, "Deployment")["spec"]["template"]["spec"]
    names = {each["name"] for container in (*pod["initContainers"], *pod["containers"]) for each in container["env"]}

    known = {f"WIRETUNE_{name.upper()}" for name in Settings.model_fields} | {SECRETS_DIR}
    assert names <= known
    [api] = pod["containers"]
    assert {"name": "WIRETUNE_USER_CODE", "value": "false"} in api["env"]  # the operator allows it


def test_no_caller_chooses_his_address_and_the_ingress_that_an_overlay_names_passes_it_on() -> None:
    [api] = kind(BASE, "Deployment")["spec"]["template"]["spec"]["containers"]
    patch = yaml.safe_load((KUBERAY / "overlays" / "example" / "ingress.yaml").read_text())
    [patched] = patch["spec"]["template"]["spec"]["containers"]
    [believed] = patched["env"]
    ingress = ProxyHeadersMiddleware(Any, believed["value"]).trusted_hosts

    assert (patch["kind"], patch["metadata"]["name"], patched["name"]) == ("Deployment", "api", api["name"])
    assert believed["name"] == "FORWARDED_ALLOW_IPS" not in {each["name"] for each in api["env"]}
    assert "10.244.3.9" in ingress and "10.244.4.9" not in ingress
    assert ingress.get_trusted_client_address("198.51.100.1, 203.0.113.7, 10.244.3.9")[0] == "203.0.113.7"


def test_the_pod_of_the_page_that_restores_a_backup_has_what_the_api_has() -> None:
    [text] = re.findall(r"^```yaml\n(.*?)^```", (DEPLOY.parent / "docs" / "kuberay.md").read_text(), re.M | re.S)
    pod, deployment = yaml.safe_load(text), kind(BASE, "Deployment")
    [restoring], [api] = pod["spec"]["containers"], deployment["spec"]["template"]["spec"]["containers"]
    volumes = deployment["spec"]["template"]["spec"]["volumes"]

    kubernetes_validate.validate(pod, "1.32", strict=True)
    assert restoring["command"][:2] == ["wiretune", "restore"]
    assert [each for each in restoring["env"] if each not in api["env"]] == []
    assert [each for each in restoring["volumeMounts"] if each not in api["volumeMounts"]] == [
        {"name": "backups", "mountPath": "/backups", "readOnly": True}
    ]
    assert [each["name"] for each in pod["spec"]["volumes"] if each not in volumes] == ["backups"]


def test_only_pods_of_ours_the_operator_and_callers_of_the_api_are_let_in() -> None:
    inside, api = (each["spec"] for each in BASE if each["kind"] == "NetworkPolicy")
    parts = [each["metadata"]["labels"] for each in _templates()]

    assert all(labels["app.kubernetes.io/part-of"] == "wiretune" for labels in parts)
    assert len(inside["ingress"][0]["from"]) == 2 and "ports" in api["ingress"][0]


def _templates() -> list[dict[str, Any]]:
    cluster = kind(BASE, "RayCluster")["spec"]
    pods = [kind(BASE, name)["spec"]["template"] for name in ("Deployment", "StatefulSet")]
    return [*pods, cluster["headGroupSpec"]["template"], *(each["template"] for each in cluster["workerGroupSpecs"])]


def test_the_commands_of_the_api_pod_run_as_host_processes(tmp_path: Path) -> None:
    """Migrations run twice, as those of two replicas; `serve` is run by the end-to-end tests, from the compose file."""
    pod = kind(BASE, "Deployment")["spec"]["template"]["spec"]
    [migrate], [serve] = pod["initContainers"], pod["containers"]
    (tmp_path / "wiretune_database_url").write_text(f"sqlite:///{tmp_path}/of-secret.db")
    program = Path(sys.executable).parent / migrate["command"][0]
    environment = os.environ | {SECRETS_DIR: str(tmp_path), "WIRETUNE_STATE_DIR": str(tmp_path / "state")}

    said = [
        subprocess.run([program, *migrate["command"][1:]], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]

    assert said[0].stdout == said[1].stdout and "at revision" in said[0].stdout
    assert (tmp_path / "of-secret.db").exists()
    compose = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text())
    assert serve["command"] == compose["services"]["api"]["command"].split()


@pytest.mark.ray
def test_ray_start_has_the_parameters_of_the_ray_cluster() -> None:
    from ray.scripts.scripts import start

    known = {option.removeprefix("--") for each in start.params for option in each.opts}
    cluster = kind(BASE, "RayCluster")["spec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    assert {name for group in groups for name in group["rayStartParams"]} <= known


def test_the_secrets_are_made_once_and_each_is_another(tmp_path: Path) -> None:
    for _ in range(2):
        subprocess.run(["sh", str(DEPLOY / "secrets.sh")], cwd=tmp_path, check=True)
        found = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}

    names = ("ray_token", "database_password", "wiretune_secret", "redis_password")
    assert len({found[name] for name in names}) == 4 and all(len(found[name]) == 64 for name in names)
    assert found["wiretune_database_url"] == f"postgresql://wiretune:{found['database_password']}@postgres/wiretune"
    assert re.fullmatch("wt_[0-9a-f]{64}", found["wiretune_api_key"])
    assert (tmp_path / "secrets").stat().st_mode & 0o077 == 0
