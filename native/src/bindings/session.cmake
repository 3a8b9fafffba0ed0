rouse_module(_session SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/session_module.cpp LIBS rouse_session_client)
