rouse_module(_redirect SOURCES redirect.cpp requests.cpp watched.cpp LIBS rouse_redirect rouse_torch_python)
