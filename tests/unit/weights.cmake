foreach(name safetensors_test gguf_test weights_test gguf_weights_test quantise_test weights_values_test weights_families_test
             weights_checkpoints_test random_fill_test)
  testbed_unit_test(${name} testbed_weights testbed_device fmt::fmt nlohmann_json::nlohmann_json)
endforeach()
