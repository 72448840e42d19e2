"""`/v1/cluster`: the nodes, and what runs on them."""

from fastapi import APIRouter, Depends, Request

from api.http.auth import Caller, require_key
from api.http.dependencies import Slot
from api.http.openapi import CALLING, error_answers
from api.http.services import services_of
from service.errors import Busy
from service.wire.cluster import ClusterView

router = APIRouter(
    prefix="/v1", tags=["cluster"], dependencies=[Depends(require_key)], responses=error_answers(*CALLING)
)


@router.get("/cluster", operation_id="getCluster", responses=error_answers(*CALLING, Busy))
def get_cluster(request: Request, caller: Caller, _: Slot) -> ClusterView:
    """Return the cluster's nodes and whose workers they run; of jobs that the caller does not see, only how many."""
    return services_of(request).occupancy.view(by=caller)
