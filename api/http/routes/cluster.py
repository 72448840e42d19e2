"""`/v1/cluster`: the nodes, and the workers on them."""

from fastapi import Depends, Request

from api.http.auth import Caller, require_key
from api.http.dependencies import Slot
from api.http.operations import Operation, OperationRouter
from api.http.services import services_of
from service.control.access.rules import Action
from service.errors import Busy
from service.wire.cluster import ClusterView

router = OperationRouter(prefix="/v1", tags=["cluster"], dependencies=[Depends(require_key)])


@router.serves("GET", "/cluster", Operation(id="getCluster", action=Action.READ, errors=(Busy,)))
def get_cluster(request: Request, caller: Caller, _: Slot) -> ClusterView:
    """Return the cluster's nodes and whose workers they run. Jobs that the caller may not see are only counted."""
    return services_of(request).occupancy.view(by=caller)
