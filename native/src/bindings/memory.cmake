rouse_module(_memory SOURCES memory.cpp LIBS rouse_transfer rouse_memory)
