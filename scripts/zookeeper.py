"""A client of ZooKeeper for scripts/app-images.sh.

  zookeeper.py create PORT FROM TO FILE   makes the nodes /n/FROM to /n/TO, one after the other, and writes the number of each
                                          into FILE when the server has acknowledged it
  zookeeper.py check PORT                 prints how many nodes there are; says what is wrong unless they are the first ones,
                                          each with its value
"""
import logging
import sys
import time

from kazoo.client import KazooClient

logging.disable(logging.CRITICAL)


def connected(port):
    client = KazooClient(hosts=f"127.0.0.1:{port}", timeout=4)
    for _ in range(60):
        try:
            client.start(timeout=2)
            return client
        except Exception:
            time.sleep(0.2)
    sys.exit("the server does not answer")


def value(number):
    return (f"{number:08d}" * 40).encode()


def create(port, first, last, path):
    client = connected(port)
    client.ensure_path("/n")
    for number in range(first, last + 1):
        client.create(f"/n/{number:08d}", value(number))
        with open(path, "wb", buffering=0) as file:
            file.write(str(number).encode())
    client.stop()


def check(port):
    client = connected(port)
    names = sorted(client.get_children("/n")) if client.exists("/n") else []
    if names != [f"{number:08d}" for number in range(1, len(names) + 1)]:
        sys.exit(f"there are {len(names)} nodes with a gap")
    # Each fifth: a call for each takes long.
    for name in names[::5]:
        if client.get(f"/n/{name}")[0] != value(int(name)):
            sys.exit(f"node {name} has another value")
    print(len(names))
    client.stop()


if sys.argv[1] == "create":
    create(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
else:
    check(sys.argv[2])
