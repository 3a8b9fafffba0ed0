rouse_module(_redirect SOURCES redirect.cpp requests.cpp LIBS rouse_redirect rouse_torch_python)
