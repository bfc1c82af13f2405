foreach(name cluster_presets_test cluster_presets_config_test)
  testbed_unit_test(${name} testbed_config fmt::fmt)
endforeach()
