rouse_module(_redirect SOURCES redirect.cpp LIBS rouse_redirect rouse_torch_python)
