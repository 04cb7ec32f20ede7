# SPDX-License-Identifier: Apache-2.0
# What is run in a machine of `make test-kernels`, in the project's folder.
uname -rm
python3 --version
python3 -c 'import bcc; print("bcc", bcc.__version__)'
getconf PAGESIZE
python3 -m netmon doctor --json
NETMON_REQUIRE_KERNEL=1 python3 -m pytest -p no:cacheprovider --timeout 600 -m matrix tests/kernel/test_matrix.py
