"""What is done about the volumes of a group's replicas: they have one size."""

from volume_world import GIB, World

CLAIMS = [f"data-orders-g0-{ordinal}" for ordinal in range(3)]
GROWS = {"autoGrow": {"enabled": True, "maxSize": "40Gi", "step": "10Gi"}}


def test_each_replica_has_a_volume_of_its_own():
    """Each is looked at, and shown under its pod's name."""
    world = World(replicas=3)
    for pod in world.pods:
        world.use(20, pod=pod)
    plan = world.turn()
    assert [entry.pod for entry in plan.storage] == list(world.pods)
    assert plan.disk == "20%"
    assert plan.template_size_bytes == {"orders-g0": 10 * GIB}
    assert sorted(plan.live_values) == sorted(world.pods)
    assert world.resizes == []


def test_a_larger_size_is_asked_of_every_replica():
    """As the spec says."""
    world = World(replicas=3)
    world.spec["storage"]["size"] = "20Gi"
    world.turn()
    assert [world.request(claim) for claim in CLAIMS] == [20 * GIB] * 3


def test_what_one_replica_needs_all_of_them_get():
    """A log that the leader has room for has to fit into every follower's volume."""
    world = World(replicas=3, **GROWS)
    for pod in world.pods:
        world.use(20, pod=pod)
    world.use(82, pod="orders-g0-1")
    world.turn()
    assert [action.name for action in world.resizes] == [CLAIMS[1]]
    world.turn(after_s=1)
    assert [world.request(claim) for claim in CLAIMS] == [20 * GIB] * 3
    told = [event.message for event in world.events if event.reason == "VolumeGrowing"]
    assert any("another replica of its group has as much" in text for text in told)


def test_a_replica_on_a_new_volume_grows_to_the_others_size():
    """Its claim was made from a template of before."""
    world = World(replicas=3)
    for claim in CLAIMS[:2]:
        world.claims[claim]["spec"]["resources"]["requests"]["storage"] = "30Gi"
        world.finish_growth(claim)
    plan = world.turn()
    assert [(action.name, action.size_bytes) for action in world.resizes] == [(CLAIMS[2], 30 * GIB)]
    assert plan.template_size_bytes == {"orders-g0": 30 * GIB}


def test_a_size_that_one_replica_cannot_have_is_not_asked_of_the_others():
    """Its storage has refused it: all would be of different sizes."""
    world = World(replicas=2)
    world.set_request("50Gi")
    world.refuse_growth()
    world.turn()
    assert world.request(CLAIMS[1]) == 10 * GIB


def test_other_groups_keep_their_size():
    """Each group has a log of its own."""
    world = World(groups=2, replicas=2)
    world.set_request("30Gi")
    world.finish_growth()
    world.turn()
    assert world.request("data-orders-g0-1") == 30 * GIB
    assert world.request("data-orders-g1-0") == world.request("data-orders-g1-1") == 10 * GIB
