def test_no_port_is_given_twice() -> None:
    ports = [free_port() for _ in range(1000)]
    assert len(set(ports)) == len(ports)
