"""The HTTP surface: routes, authentication and errors; what is done lies in service/."""
