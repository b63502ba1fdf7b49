"""The workloads by number."""

from benchmarks import (
    w1_hydrate,
    w2a_first_page,
    w2b_deep_page,
    w2c_small_read,
    w3_write,
    w4_list,
    w4g_growth,
    w5_glob,
    w5m_glob_memory,
    w6_grep,
    w6m_grep_memory,
    w11_redos,
)

MODULES = (
    w1_hydrate,
    w2a_first_page,
    w2b_deep_page,
    w2c_small_read,
    w3_write,
    w4_list,
    w4g_growth,
    w5_glob,
    w5m_glob_memory,
    w6_grep,
    w6m_grep_memory,
    w11_redos,
)
WORKLOADS = {module.WORKLOAD.id: module.WORKLOAD for module in MODULES}
