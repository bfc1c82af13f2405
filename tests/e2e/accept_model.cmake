foreach(class Model Exposure Soak)
  string(TOLOWER ${class} lower)
  testbed_e2e_test(e2e_accept_${lower} accept_model_test.py ${class} TIMEOUT 240)
endforeach()
