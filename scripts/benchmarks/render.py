def render(*a): pass
